"""The networks of a language model: llm's."""

from mixmark.suites.llm.network import Step as Step
from mixmark.suites.llm.network import Teach as Teach

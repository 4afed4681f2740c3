"""Reporters: functions from a judgement to text. They lay out its conclusions and draw none of their own."""

"""The command `mixmark plan`: which devices to buy, to add or to switch off, predicted from measurements."""

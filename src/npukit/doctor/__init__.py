"""Checks over what was found on a machine: can it train on NPUs, and if not, what is wrong?"""

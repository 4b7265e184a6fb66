#!/bin/bash
# Prints what the run script puts behind :::SYSJSON: this node, in the fields of a system description.
exec python3 -m fake_ngc.sysjson

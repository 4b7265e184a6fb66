#!/bin/bash
# Print the text that the run script logs after :::SYSJSON, which is this node in the fields of a system description.
exec python3 -m fake_ngc.sysjson

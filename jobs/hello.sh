#!/bin/sh
# Run by jobs/hello.yaml: what a rank is told about itself.
echo "hello from rank $RANK of $WORLD_SIZE on $(hostname)"

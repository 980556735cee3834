# Prepares data, and trains with it.
set -e
mkdir -p prepared
for n in 1 2 3; do echo "$n" >>prepared/numbers.txt; done
python plain.py --lr "$1"

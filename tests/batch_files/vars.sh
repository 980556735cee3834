export SEEN_BY=vars

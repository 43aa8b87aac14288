-- The script answers the tables of a partition.
return cmsgpack.pack(call('SMEMBERS', KEYS[1]))

-- The script tells the programs of earlier versions that write to a partition, without a draw,
-- that the store is not theirs any more.
call('SET', sub(KEYS[1], 1, -2) .. 'l', '3')
return '1'

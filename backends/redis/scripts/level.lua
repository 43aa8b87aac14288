-- The script tells the programs of earlier versions that write to a partition, without a draw,
-- that the store is not theirs any more.
local k = sub(KEYS[1], 1, -2) .. 'l'
local known = tonumber(call('GET', k) or 0)
if not known or known < 3 then call('SET', k, '3') end
return '1'

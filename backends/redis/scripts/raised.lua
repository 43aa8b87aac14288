-- The script ends what raise.lua began: the record says this version.
local m = KEYS[1]
local format = tonumber(call('HGET', m, 'format') or 0)
if format == 1 then call('HSETNX', m, 'spread', 'rows') end
if format == 1 or format == 2 then call('HSET', m, 'format', '3') end
return '1'

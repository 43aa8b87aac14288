-- The script draws ARGV[1] timestamps. It answers the milliseconds and the counter of the
-- first one.
local t = call('TIME')
local err = oracleLoad(KEYS[1], t[1] * 1000 + floor(t[2] / 1000))
if err then return err end
local first = cmsgpack.pack({ms, ctr})
oracleTake(tonumber(ARGV[1]))
oracleSave()
return first

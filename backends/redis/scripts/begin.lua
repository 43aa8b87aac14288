-- Draws ARGV[1][1] timestamps, then reads fields: key, field, and so on. Whatever
-- stands in a row was drawn before, so the newest write of a field is what a read at
-- any of these timestamps finds. Answers the milliseconds and the counter of the
-- first timestamp, then the fields.
local A = cmsgpack.unpack(ARGV[1])
local t = call('TIME')
local err = oracleLoad(KEYS[1], t[1] * 1000 + floor(t[2] / 1000))
if err then return err end
local out, n = {ms, ctr}, 2
oracleTake(A[1])
oracleSave()
for p = 2, #A, 2 do
  n = n + 1
  out[n] = call('HGET', A[p], A[p + 1])
end
return cmsgpack.pack(out)

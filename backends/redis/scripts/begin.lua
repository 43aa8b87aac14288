-- The script draws ARGV[1][1] timestamps, and then reads fields: key, field, and so on.
-- All that it finds in a row was drawn before. So the newest write of a field is what a
-- read at any of these timestamps finds. It answers the milliseconds and the counter of
-- the first timestamp, and then the fields. If they have more than ARGV[1][2] bytes, it
-- answers no fields.
local A = cmsgpack.unpack(ARGV[1])
local t = call('TIME')
local err = oracleLoad(KEYS[1], t[1] * 1000 + floor(t[2] / 1000))
if err then return err end
local out, n, left = {ms, ctr}, 2, A[2]
oracleTake(A[1])
oracleSave()
for p = 3, #A, 2 do
  local v = call('HGET', A[p], A[p + 1])
  n = n + 1
  out[n] = v
  if v then
    left = left - #v
    if left < 0 then return cmsgpack.pack({out[1], out[2]}) end
  end
end
return cmsgpack.pack(out)

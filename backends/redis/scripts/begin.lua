-- The script draws ARGV[1][1] timestamps, and then reads fields: key, how many fields of it,
-- and these, and so on. If the number is negative, the first of the fields is a cell's, and the two
-- newest writes of that are wanted.
-- What was drawn is at or before the first of these timestamps, so the newest write of a field is what a
-- read at any of them finds, unless it was put ahead, as a lease is: then the client reads anew. It answers the milliseconds and the counter of
-- the first timestamp, and then the fields. If they have more than ARGV[1][2] bytes, it
-- answers no fields.
local A = cmsgpack.unpack(ARGV[1])
local t = call('TIME')
local err = oracleLoad(KEYS[1], t[1] * 1000 + floor(t[2] / 1000))
if err then return err end
local out, n, left = {ms, ctr}, 2, A[2]
oracleTake(A[1])
oracleSave()
local p, na = 3, #A
while p <= na do
  local k, two = A[p + 1], false
  if k < 0 then k, two = -k, true end
  if k == 1 and not two then
    local v = call('HGET', A[p], A[p + 2])
    n = n + 1
    out[n] = v
    if v then left = left - #v end
  else
    local vs = call('HMGET', A[p], unpack(A, p + 2, p + 1 + k))
    for i = 1, k do
      local v = vs[i]
      local size = v and #v or 0
      if v and two and i == 1 then v, size = past(A[p], A[p + 2], v) end
      n = n + 1
      out[n] = v
      left = left - size
    end
  end
  if left < 0 then return cmsgpack.pack({out[1], out[2]}) end
  p = p + 2 + k
end
return cmsgpack.pack(out)

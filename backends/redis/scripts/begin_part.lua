-- Behind the groups there may be begins, after false: how many timestamps they draw, how many
-- bytes to answer at most, and fields as in begin.lua. They see what the groups have
-- written, and their timestamps are later. The script answers the milliseconds and the
-- counter of the first timestamp, and then the fields. If these have too many bytes or
-- one cannot be read, it answers none of them: nothing here may raise an error.
if p < na then
  reserve()
  local first, left = no + 2, A[p + 2]
  out[no + 1], out[no + 2] = ms, ctr
  no = first
  oracleTake(A[p + 1])
  p = p + 3
  while p <= na do
    local k, two = A[p + 1], false
    if k < 0 then k, two = -k, true end
    local vs = redis.pcall('HMGET', A[p], unpack(A, p + 2, p + 1 + k))
    if vs.err then left = -1 end
    for i = 1, k do
      local v = vs[i]
      local size = v and #v or 0
      if v and two and i == 1 then v, size = past(A[p], A[p + 2], v) end
      no = no + 1
      out[no] = v
      left = left - size
    end
    if left < 0 then
      for i = no, first + 1, -1 do out[i] = nil end
      break
    end
    p = p + 2 + k
  end
end

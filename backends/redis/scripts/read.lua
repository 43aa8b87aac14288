-- Reads rows. A record is 0, key, field, th, tl for the newest write of one cell
-- at or below a timestamp, with its lock and mark: nearly every read there is. Or
-- 1, key and a general read.
local A = cmsgpack.unpack(ARGV[1])
local out, n = {}, 0
local p, na = 1, #A
while p <= na do
  n = n + 1
  local key = A[p + 1]
  if A[p] == 0 then
    local f = A[p + 2]
    local v = call('HGET', key, f)
    if v then v = older(key, f, v, 1, A[p + 3], A[p + 4], 4294967295, 4294967295) end
    out[n] = v
    p = p + 5
  else
    local row, _, nextp = view(key, A, p + 2, nil)
    out[n] = row
    p = nextp
  end
end
return cmsgpack.pack(out)

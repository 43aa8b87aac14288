-- The script reads rows. ARGV[1] says how many steps and bytes this run may take. Then come
-- the reads. A read is 0, key, field, th, tl: it finds the newest write of one cell at or
-- below a timestamp, with the cell's lock and mark. Nearly all reads are of this kind. Or
-- it is 1, key and a general read. The script answers as many rows as fit. If not even the
-- first one fits, it answers 1 in its place.
local A = cmsgpack.unpack(ARGV[1])
maxSteps, maxBytes = A[1], A[2]
local out, n = {}, 0
local p, na = 3, #A
while p <= na do
  local key, v = A[p + 1], nil
  if A[p] == 0 then
    local f = A[p + 2]
    v = call('HGET', key, f)
    spent = spent + 1
    if v then
      size = size + #v
      v = older(key, f, v, 1, A[p + 3], A[p + 4], 4294967295, 4294967295)
    end
    p = p + 5
  else
    local row, _, nextp = view(key, A, p + 2, nil)
    v, p = row, nextp
  end
  if v == nil then
    if n == 0 then out[1] = 1 end
    break
  end
  n = n + 1
  out[n] = v
  if spent > maxSteps or size > maxBytes then break end
end
return cmsgpack.pack(out)

-- The script answers the keys of notified rows of one partition, in the order of their slots,
-- as they stand in the index. ARGV[1] holds: index, index of version 1, lower bound, most
-- members to look at, most bytes to answer. It answers the bound to go on from (false at the
-- end), and the keys; or 1 if the partition has an index of version 1.
local A = cmsgpack.unpack(ARGV[1])
local idx, lo, look, left = A[1], A[3], A[4], A[5]
if call('EXISTS', A[2]) == 1 then return cmsgpack.pack({1}) end
local out, n, prev = {false}, 1, nil
while true do
  local chunk = look
  if chunk > 128 then chunk = 128 end
  local members = call('ZRANGEBYLEX', idx, lo, '+', 'LIMIT', 0, chunk)
  for k = 1, #members do
    local at = sub(members[k], 1, find(members[k], '\0\1', 3, true) - 1)
    look = look - 1
    if at ~= prev then
      prev = at
      n = n + 1
      out[n] = sub(at, 3)
      left = left - #at
    end
    lo = '(' .. at .. '\0\2'
    if look <= 0 or left < 0 then
      out[1] = lo
      return cmsgpack.pack(out)
    end
  end
  if #members < chunk then return cmsgpack.pack(out) end
end

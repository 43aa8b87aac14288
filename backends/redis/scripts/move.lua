-- The script moves members of an index of version 1 into the index by slot, and answers the
-- next ones. ARGV[1] holds: the old index, the new one, prefix of the row keys, most members
-- and bytes to answer, and the members to move: old, new, row, field. It may run any number
-- of times, and at any time later: it looks whether the notification is there still. A member
-- without one is dropped, because it finds nothing.
local A = cmsgpack.unpack(ARGV[1])
local old, new, prefix, most, left = A[1], A[2], A[3], A[4], A[5]
for p = 6, #A, 4 do
  if call('HEXISTS', prefix .. A[p + 2], A[p + 3]) == 1 then call('ZADD', new, 0, A[p + 1]) end
  call('ZREM', old, A[p])
end
local out, n = {}, 0
while n < most and left > 0 do
  local members = call('ZRANGE', old, n, n + 15)
  for k = 1, #members do
    n = n + 1
    out[n] = members[k]
    left = left - #members[k]
  end
  if #members < 16 then break end
end
return cmsgpack.pack(out)

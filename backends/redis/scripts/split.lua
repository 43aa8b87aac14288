-- The script answers at most ARGV[2] members of the index ARGV[1], at equal distances.
local idx, each = ARGV[1], tonumber(ARGV[2])
local size = call('ZCARD', idx)
local out, n, last = {}, 0, 0
for i = 1, each do
  local rank = floor(size * i / (each + 1))
  if rank > last then
    last = rank
    n = n + 1
    out[n] = call('ZRANGE', idx, rank, rank)[1]
  end
end
return cmsgpack.pack(out)

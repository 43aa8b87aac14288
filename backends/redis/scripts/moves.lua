-- The script answers the tables of a partition that have an index of version 1.
local tag, out, n = sub(KEYS[1], 1, -2), {}, 0
for _, name in ipairs(call('SMEMBERS', KEYS[1])) do
  if call('EXISTS', tag .. 'n:' .. name) == 1 then
    n = n + 1
    out[n] = name
  end
end
return cmsgpack.pack(out)

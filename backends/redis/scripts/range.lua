-- The script reads ranges of the history of a row that is read in pieces. ARGV[1] holds the
-- history's key, how many steps and bytes this run may take, and the ranges: lo, hi, lim.
-- It answers how many ranges are done, where the next one goes on (false: at its start),
-- how many of its members are there, and the members.
local A = cmsgpack.unpack(ARGV[1])
local hkey = A[1]
local steps, bytes = A[2], A[3]
local out, n, done = {0, false, 0}, 3, 0
for p = 4, #A, 3 do
  local first, lim, here, chunk = A[p], A[p + 2], 0, 4
  while true do
    if lim > 0 and chunk > lim - here then chunk = lim - here end
    local r = call('ZRANGEBYLEX', hkey, first, A[p + 1], 'LIMIT', 0, chunk)
    local got, before = #r, bytes
    for i = 1, got do
      n = n + 1
      out[n] = r[i]
      bytes = bytes - #r[i]
    end
    here = here + got
    steps = steps - 4 - got
    if got < chunk or here == lim then
      done = done + 1
      out[1], out[2], out[3] = done, false, 0
      break
    end
    first = '(' .. r[got]
    out[2], out[3] = first, here
    if steps < 0 or bytes < 0 then break end
    if before - bytes > 65536 * got then chunk = 1 elseif chunk < 512 then chunk = 2 * chunk end
  end
  if steps < 0 or bytes < 0 then break end
end
return cmsgpack.pack(out)

-- The script reads one page of a scan of one partition. ARGV[1] holds: index key, lower and
-- upper bound, reverse, most rows to answer, most rows to look at, most bytes to answer,
-- prefix of the row keys, want[1..8], the
-- steps that this run may take, and a general read. It answers the bound to go on from
-- (false at the end), and then row, view, row, view. If a row alone is too much, its view
-- is 1. If it has drawn a timestamp (drawn_part.lua), the milliseconds and the counter of that are the last two.
local A = cmsgpack.unpack(ARGV[1])
local idx, lo, hi, reverse, most, look, prefix = A[1], A[2], A[3], A[4], A[5], A[6], A[8]
maxSteps, maxBytes = A[17], A[7]
local want = {}
for i = 1, 8 do want[i] = A[8 + i] end
local out, n, rows, seen = {false}, 1, 0, 0
local stop = false
while not stop do
  local chunk = look - seen
  if chunk > 128 then chunk = 128 end
  if most > 0 and chunk > most - rows + 8 then chunk = most - rows + 8 end
  local keys
  if reverse then
    keys = call('ZREVRANGEBYLEX', idx, hi, lo, 'LIMIT', 0, chunk)
  else
    keys = call('ZRANGEBYLEX', idx, lo, hi, 'LIMIT', 0, chunk)
  end
  local got = #keys
  for i = 1, got do
    local row = keys[i]
    local bound = '(' .. row
    seen = seen + 1
    local v, found = view(prefix .. row, A, 18, want)
    if v == nil then
      if seen > 1 then
        -- The next page begins with this row.
        if reverse then out[1] = hi else out[1] = lo end
        stop = true
        break
      end
      v, found, spent = 1, true, maxSteps + 1
    end
    if found then
      out[n + 1] = row
      out[n + 2] = v
      n = n + 2
      rows = rows + 1
      size = size + #row
    end
    if reverse then hi = bound else lo = bound end
    if rows == most or seen >= look or size >= maxBytes or spent > maxSteps then
      out[1] = bound
      stop = true
      break
    end
  end
  if got < chunk then
    -- The index ends here, unless the page was cut before its last key.
    if not stop then break end
  end
end
if took then out[n + 1], out[n + 2] = took[1], took[2] end
return cmsgpack.pack(out)

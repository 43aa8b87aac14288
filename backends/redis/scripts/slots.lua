-- The script reads one page of the notified rows of some slots, in one partition or, on one
-- server, in several. ARGV[1] holds: most rows to answer (0: no limit), most members and
-- leaps, most bytes to answer, the steps that this run may take, where the partitions begin,
-- and a general read. Then come for each partition: its index, its index of version 1,
-- prefix of the row keys, lower bound, most rows to answer, and the ranges of slots: first
-- and last of each, 2 bytes each; false: those of the partition before. It answers for each
-- partition the bound to go on from (false at the end), the number of rows, and then row,
-- view, row, view. If a row alone is too much, its view is 1. If the partition has an index
-- of version 1, the number is -1: its members must be moved first.
local A = cmsgpack.unpack(ARGV[1])
local most, look = A[1], A[2]
maxBytes, maxSteps = A[3], A[4]
local want = {false, false, false, false, false, false, false, true}
local out, n, rows, seen, viewed, stop = {}, 0, 0, 0, 0, false
local ranges, last

-- place finds the first range from i on that does not end before a slot.
local function place(i, slot)
  local j = last
  while i <= j do
    local m = floor((i + j) / 2)
    local h, l = byte(ranges, 4 * m - 1, 4 * m)
    if h * 256 + l < slot then i = m + 1 else j = m - 1 end
  end
  return i
end

local function walk(idx, prefix, lo, page)
  local i, from, to = 0, 0, -1 -- the range
  local here, chunk, prev = 0, 4, nil
  while true do
    if chunk > page - here + 3 then chunk = page - here + 3 end
    local members = call('ZRANGEBYLEX', idx, lo, '+', 'LIMIT', 0, chunk)
    local got, leap = #members, nil
    for k = 1, got do
      local member = members[k]
      local h, l = byte(member, 1, 2)
      local slot = h * 256 + l
      seen = seen + 1
      if slot > to then
        i = place(i + 1, slot)
        if i > last then return false, here end
        local fh, fl, th, tl = byte(ranges, 4 * i - 3, 4 * i)
        from, to = fh * 256 + fl, th * 256 + tl
      end
      if slot < from then
        -- What lies between is not visited: the next range begins far behind it, perhaps.
        lo = '[' .. sub(ranges, 4 * i - 3, 4 * i - 2)
        if seen >= look then
          stop = true
          return lo, here
        end
        leap = k
        break
      end
      -- The slot may end in a zero byte, which is none of the row's.
      local at = sub(member, 1, find(member, '\0\1', 3, true) - 1)
      if at ~= prev then
        local row = sub(at, 3)
        if find(row, '\0', 1, true) then row = string.gsub(row, '%z\255', '\0') end
        local v, found = view(prefix .. row, A, 6, want)
        viewed = viewed + 1
        if v == nil then
          if viewed > 1 then
            -- The next page begins with this row.
            stop = true
            return lo, here
          end
          v, found, spent = 1, true, maxSteps + 1
        end
        prev = at
        if found then
          out[n + 1] = row
          out[n + 2] = v
          n = n + 2
          rows = rows + 1
          here = here + 1
          size = size + #row
        end
      end
      lo = '(' .. at .. '\0\2'
      if rows == most or seen >= look or size >= maxBytes or spent > maxSteps then
        stop = true
        return lo, here
      end
      if here == page then return lo, here end
    end
    if leap then
      -- Where one range held nothing, the next one may hold nothing either.
      chunk = leap == 1 and 1 or 4
    elseif got < chunk then
      return false, here
    elseif chunk < 128 then
      chunk = 2 * chunk
    end
  end
end

for p = A[5], #A, 6 do
  local head = n + 1
  n = n + 2
  out[head], out[head + 1] = A[p + 3], 0
  if A[p + 5] then
    ranges = A[p + 5]
    last = #ranges / 4
  end
  if not stop then
    if call('EXISTS', A[p + 1]) == 1 then
      out[head + 1] = -1
    else
      out[head], out[head + 1] = walk(A[p], A[p + 2], A[p + 3], A[p + 4])
    end
  end
end
return cmsgpack.pack(out)

-- older returns what a read of a cell's field must answer: the field itself, or,
-- where older writes are wanted too, the field and the history members. Wanted
-- are at most lim (0: all) writes in the inverted range [th,tl] to [fh,fl].
local function older(key, field, v, lim, th, tl, fh, fl)
  local pos, k = 2, byte(v)
  local f = k % 8
  if f < 4 then return v end
  if f % 2 == 1 then pos = pos + 12 + su('>I4', v, pos + 8) end
  if f % 4 >= 2 then pos = pos + 12 + su('>I4', v, pos + 8) end
  local h, l = su('>I4I4', v, pos)
  -- The newest write is the answer, or everything older is below the range.
  if lim == 1 and (h > th or h == th and l >= tl) then return v end
  if h > fh or h == fh and l >= fl then return v end
  local last
  if fl < 4294967295 then
    last = '(' .. field .. sp('>I4I4', fh, fl + 1)
  elseif fh < 4294967295 then
    last = '(' .. field .. sp('>I4I4', fh + 1, 0)
  else
    last = '(' .. field .. '\255\255\255\255\255\255\255\255\255'
  end
  local tag = find(key, '}', 1, true)
  local hkey = sub(key, 1, tag) .. 'h' .. sub(key, tag + 2)
  local first = '[' .. field .. sp('>I4I4', th, tl)
  local r
  if lim == 0 then
    r = call('ZRANGEBYLEX', hkey, first, last)
  else
    r = call('ZRANGEBYLEX', hkey, first, last, 'LIMIT', 0, lim)
  end
  if k >= 8 then
    -- The row's hash holds some older writes itself.
    local prefix = 'H' .. sub(field, 2)
    local n = #prefix
    local all = call('HGETALL', key)
    for j = 1, #all, 2 do
      if sub(all[j], 1, n) == prefix then r[#r + 1] = field .. sub(all[j], n + 1) .. all[j + 1] end
    end
  end
  if not r[1] then return v end
  r[#r + 1] = v
  return r
end

-- The general read: A[p] on says nc, then for each column its field and lim (-1:
-- no older writes), th, tl, fh, fl; then nr history ranges, each lo, hi, lim. nc
-- = -1 stands for every field of the row, with one lim and range for all cells.
-- Answers the list of views and, for a scan, whether any of the row's fields is
-- of a wanted kind: want[flags] for cells, want[8] for notifications.
local function view(key, A, p, want)
  local row, n, found = {}, 0, false
  local nc = A[p]
  p = p + 1
  if nc >= 0 then
    for _ = 1, nc do
      local f, lim = A[p], A[p + 1]
      local v = call('HGET', key, f)
      if v then
        local cell = byte(f) == 87
        if want and not found then found = want[cell and byte(v) % 8 or 8] end
        if cell and lim >= 0 then v = older(key, f, v, lim, A[p + 2], A[p + 3], A[p + 4], A[p + 5]) end
      end
      n = n + 1
      row[n] = v
      p = p + 6
    end
  else
    local lim, th, tl, fh, fl = A[p], A[p + 1], A[p + 2], A[p + 3], A[p + 4]
    p = p + 5
    local all = call('HGETALL', key)
    for i = 1, #all, 2 do
      local f, v = all[i], all[i + 1]
      local kind = byte(f)
      -- Kind H is an older write, which older() finds.
      if kind ~= 72 then
        local cell = kind == 87
        if want and not found then found = want[cell and byte(v) % 8 or 8] end
        if cell and lim >= 0 then v = older(key, f, v, lim, th, tl, fh, fl) end
        row[n + 1] = f
        row[n + 2] = v
        n = n + 2
      end
    end
  end
  local nr = A[p]
  p = p + 1
  if nr > 0 then
    local tag = find(key, '}', 1, true)
    local hkey = sub(key, 1, tag) .. 'h' .. sub(key, tag + 2)
    for _ = 1, nr do
      local r
      if A[p + 2] == 0 then
        r = call('ZRANGEBYLEX', hkey, A[p], A[p + 1])
      else
        r = call('ZRANGEBYLEX', hkey, A[p], A[p + 1], 'LIMIT', 0, A[p + 2])
      end
      if r[1] then found = true end
      n = n + 1
      row[n] = r
      p = p + 3
    end
  end
  return row, found, p
end

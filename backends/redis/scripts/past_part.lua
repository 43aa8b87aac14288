-- past returns what a begin must answer that wants the two newest writes of a cell, whose field is
-- v, and how many bytes that is. It is v alone, or a list of older writes, as members of the history,
-- and v. The older writes are the newest one in the row's hash, the newest single one in the history,
-- and the newest chunk there, because each may have the newest one. If the row has too many fields to
-- look for it, or one cannot be read, the bytes are more than any answer may have. It raises no
-- error: the script may have written.
local function past(key, field, v)
  local k, chunked = byte(v), false
  if k == 255 then k, chunked = byte(v, 2), true end
  if k % 8 < 4 then return v, #v end
  local tag = find(key, '}', 1, true)
  local hkey = sub(key, 1, tag) .. 'h' .. sub(key, tag + 2)
  local after = '\255\255\255\255\255\255\255\255\255'
  local r = redis.pcall('ZRANGEBYLEX', hkey, '[' .. field, '(' .. field .. after, 'LIMIT', 0, 1)
  if r.err then return false, math.huge end
  local c = 'C' .. sub(field, 2)
  r[#r + 1] = call('ZRANGEBYLEX', hkey, '[' .. c, '(' .. c .. after, 'LIMIT', 0, 1)[1]
  if k >= 8 then
    -- Older writes in the hash are fields with H in place of W. Behind it they have a number or, in
    -- version 2, their timestamp, which otherwise begins their value.
    local name, newest, nh, nl = 'H' .. sub(field, 2), nil, nil, nil
    local function try(ts, at, member)
      local h, l = su('>I4I4', ts, at)
      if not newest or h < nh or h == nh and l < nl then newest, nh, nl = member, h, l end
    end
    if chunked then
      local names = {}
      for i = 1, floor(k / 8) do names[i] = name .. char(i - 1) end
      local vs = call('HMGET', key, unpack(names))
      for i = 1, #names do
        if vs[i] then try(vs[i], 1, field .. vs[i]) end
      end
    else
      if call('HLEN', key) > 256 then return false, math.huge end
      local all, n = call('HKEYS', key), #field
      for i = 1, #all do
        local f = all[i]
        if #f == n + 8 and sub(f, 1, n) == name then try(f, n + 1, f) end
      end
      if newest then newest = field .. sub(newest, -8) .. call('HGET', key, newest) end
    end
    r[#r + 1] = newest
  end
  if not r[1] then return v, #v end
  r[#r + 1] = v
  local size = 0
  for i = 1, #r do size = size + #r[i] end
  return r, size
end

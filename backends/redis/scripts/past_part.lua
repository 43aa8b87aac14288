-- past returns what a begin must answer that wants the two newest writes of a cell, whose field is
-- v, and how many bytes that is. It is v alone, or a list of older writes, as members of the history,
-- and v. The older writes are the newest one in the row's hash and the newest one in the history,
-- because either may be the newer one. If the row has too many fields to look for it, or one cannot
-- be read, the bytes are more than any answer may have. It raises no error: the script may have
-- written.
local function past(key, field, v)
  local k = byte(v)
  if k % 8 < 4 then return v, #v end
  local tag = find(key, '}', 1, true)
  local r = redis.pcall('ZRANGEBYLEX', sub(key, 1, tag) .. 'h' .. sub(key, tag + 2),
    '[' .. field, '(' .. field .. '\255\255\255\255\255\255\255\255\255', 'LIMIT', 0, 1)
  if r.err then return false, math.huge end
  if k >= 8 then
    if call('HLEN', key) > 256 then return false, math.huge end
    -- The field of an older write is H in place of W, and the timestamp behind it.
    local all, name, n = call('HKEYS', key), 'H' .. sub(field, 2), #field
    local newest, nh, nl
    for i = 1, #all do
      local f = all[i]
      if #f == n + 8 and sub(f, 1, n) == name then
        local h, l = su('>I4I4', f, n + 1)
        if not newest or h < nh or h == nh and l < nl then newest, nh, nl = f, h, l end
      end
    end
    if newest then r[#r + 1] = field .. sub(newest, -8) .. call('HGET', key, newest) end
  end
  if not r[1] then return v, #v end
  r[#r + 1] = v
  local size = 0
  for i = 1, #r do size = size + #r[i] end
  return r, size
end


-- The script makes the store's own record, unless ARGV[2], the number of its partitions, is 0. If there is one, it answers that record: format,
-- partitions, and what puts rows into them. The fourth field is the version of the oracle, if
-- anybody has drawn.
local m, p, format, partitions = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local kind = call('TYPE', m).ok
if kind == 'none' then
  -- A store whose record is gone was lost in part; anything else is not a store.
  local rest
  for i, want in ipairs({'string', 'set'}) do
    local k = call('TYPE', KEYS[i + 1]).ok
    if k ~= 'none' and k ~= want then
      return redis.error_reply('FOREIGN the key ' .. KEYS[i + 1] .. ' is a ' .. k .. ', not what a store keeps there')
    end
    local length = k == 'string' and call('STRLEN', KEYS[i + 1])
    if length and length ~= 55 and length ~= 62 then
      return redis.error_reply('FOREIGN the key ' .. KEYS[i + 1] .. ' exists but not ' .. m .. ', which every store has')
    end
    if k ~= 'none' then rest = KEYS[i + 1] end
  end
  if rest then return redis.error_reply('LOST ' .. rest) end
  if partitions == '0' then return redis.error_reply('NONE the store is to be opened as it is') end
  -- The record says the number of partitions for good. So a user who could not use the store does not make it.
  -- Open tries the rest out on rows, when there is a record.
  local base, f = sub(m, 1, -4), 'W1:c'
  local r, h = base .. '0}r:t/r', base .. '0}h:t/r'
  local needs = {
    {'SET', p, ''}, {'MGET', p, r}, {'TIME'}, {'INFO', 'replication'}, {'PUBLISH', ARGV[3], ''},
    {'HGET', r, f}, {'HMGET', r, f}, {'HGETALL', r}, {'HSET', r, f, ''}, {'HDEL', r, f}, {'HLEN', r}, {'HEXISTS', r, f}, {'HSCAN', r, '0'},
    {'ZADD', h, '0', f}, {'ZREM', h, f}, {'ZCARD', h}, {'ZRANGE', h, '0', '0'}, {'ZRANGEBYLEX', h, '-', '+'},
    {'ZREVRANGEBYLEX', h, '+', '-'}, {'ZREMRANGEBYLEX', h, '-', '+'}, {'SADD', r, f}, {'SREM', r, f}, {'SMEMBERS', r}, {'EXISTS', r},
    {'GET', r}, {'EVALSHA', f, '0'}, {'WATCH', r}, {'UNWATCH'}, {'MULTI'}, {'EXEC'},
  }
  for i = 1, partitions - 1 do needs[#needs + 1] = {'HSET', base .. i .. '}r:t/r', f, ''} end
  for _, c in ipairs(needs) do
    if not redis.acl_check_cmd(unpack(c)) then
      return redis.error_reply('NOPERM the user may not run ' .. c[1] .. ' on ' .. (c[2] or 'this server') .. ', which the store needs')
    end
  end
  call('HSET', m, 'format', format, 'partitions', partitions, 'spread', 'slots')
elseif kind ~= 'hash' then
  return redis.error_reply('FOREIGN the key ' .. m .. ' is a ' .. kind .. ', not what a store keeps there')
end
local got = call('HMGET', m, 'format', 'partitions', 'spread')
if not got[1] or not got[2] then
  return redis.error_reply('FOREIGN the hash ' .. m .. ' lacks the fields of a store')
end
kind = call('TYPE', KEYS[2]).ok
if kind ~= 'none' and kind ~= 'string' then
  return redis.error_reply('FOREIGN the key ' .. KEYS[2] .. ' is a ' .. kind .. ', not what a store keeps there')
end
got[3] = got[3] or ''
got[4] = ''
if kind == 'string' then
  local s = call('GET', KEYS[2])
  if #s == 55 then
    got[4] = '1'
  elseif #s == 62 then
    got[4] = tostring(byte(s, 7))
  end
end
return got

-- Makes the store's own record, or answers the one that is there: format,
-- partitions.
local m, p, format, partitions = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local kind = call('TYPE', m).ok
if kind == 'none' then
  for i = 2, #KEYS do
    if call('EXISTS', KEYS[i]) == 1 then
      return redis.error_reply('FOREIGN the key ' .. KEYS[i] .. ' exists but not ' .. m .. ', which every store has')
    end
  end
  call('HSET', m, 'format', format, 'partitions', partitions)
elseif kind ~= 'hash' then
  return redis.error_reply('FOREIGN the key ' .. m .. ' is a ' .. kind .. ', not what a store keeps there')
end
local got = call('HMGET', m, 'format', 'partitions')
if not got[1] or not got[2] then
  return redis.error_reply('FOREIGN the hash ' .. m .. ' lacks the fields of a store')
end
kind = call('TYPE', KEYS[2]).ok
if kind ~= 'none' and kind ~= 'string' then
  return redis.error_reply('FOREIGN the key ' .. KEYS[2] .. ' is a ' .. kind .. ', not what a store keeps there')
end
return got

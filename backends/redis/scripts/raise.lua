-- The script makes a store of version 1 one of version 2, but for the indexes: see
-- migrate.go. The oracle comes first. From then on programs of version 1 draw no more, and if
-- the script fails behind it, the next one goes on here.
local m, o = KEYS[1], KEYS[2]
-- From the first write on, programs of version 1 are shut out. So a user who could not go on from
-- there does not begin. The rest of what he needs was tried out on rows (record.go).
local e, n = sub(o, 1, -2) .. 'e', sub(o, 1, -2) .. 'n:'
for _, c in ipairs({
  {'SET', o, ''}, {'SET', e, ''}, {'MGET', o, e},
  {'HGET', m, 'format'}, {'HSETNX', m, 'spread', 'rows'}, {'HSET', m, 'format', '2'},
  {'ZRANGE', n, '0', '15'}, {'HEXISTS', n, 'f'},
}) do
  if not redis.acl_check_cmd(unpack(c)) then
    return redis.error_reply('NOPERM the user may not run ' .. c[1] .. ', which the store needs')
  end
end
local s = call('GET', o)
if s and #s == 55 then call('SET', o, '\255\255\255\255\255\255\2' .. s) end
if call('HGET', m, 'format') == '1' then
  call('HSETNX', m, 'spread', 'rows')
  call('HSET', m, 'format', '2')
end
return '1'

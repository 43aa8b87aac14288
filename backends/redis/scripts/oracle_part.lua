-- The oracle's state is 6 bytes of milliseconds, 3 of counter (together the
-- next timestamp to hand out), 6 of milliseconds below which every timestamp
-- handed out lies (the bound), and the run id of the server that wrote it. The
-- bound is written at least 3 s before it is reached, so that it survives a
-- crash that loses the last seconds of writes; a server with another run id
-- than the state's starts at the bound.
local oracleKey, oracleRun
local ms, ctr, bound = 0, 0, 0
local function oracleLoad(key, now)
  oracleKey = key
  local id = ''
  local s = call('GET', key)
  if s then
    if #s < 16 then return redis.error_reply('ERR percolator: the value of the oracle key is not an oracle') end
    ms, ctr, bound = su('>I6I3I6', s)
    id = sub(s, 16)
  end
  oracleRun = string.match(call('INFO', 'server'), 'run_id:(%x+)')
  if id ~= oracleRun and bound > ms then
    ms = bound
    ctr = 0
  end
  if now > ms then
    ms = now
    ctr = 0
  end
  if ms >= 35184372088830 then return redis.error_reply('ERR percolator: the oracle has no timestamps left') end
end
local function oracleTake(n)
  ctr = ctr + n
  if ctr >= 262144 then
    ms = ms + floor(ctr / 262144)
    ctr = ctr % 262144
  end
end
local function oracleSave()
  if bound - ms < 3000 then bound = ms + 6000 end
  call('SET', oracleKey, sp('>I6I3I6', ms, ctr, bound) .. oracleRun)
end

#!lua
-- Write schedules with their ticks and jobs: each change only if the rev is still the one that was read. ARGV: the
-- reason of cancels; then per change: how many values it has, its name, the rev that was read, the body to store
-- (empty: delete the schedule), due_at (of a deleted one: until when the ticks that stay were decided), an owner, its
-- former name (renamed: the rev is of that one), the jobs as `enqueue_all` takes them, the number of ticks, per tick
-- MS|CAUSE, 1 if it is open, its job, which of the jobs above that is (0: none), decided_at, body; then ids to cancel.
-- Returns per change 1 if it landed.

-- Record the tick in its job, so that a replay of the job finds it.
local function belongs(id, run)
  local f = redis.call('HMGET', job(id), 'state', 'runs')
  local runs = f[2] or ''
  if f[1] and not ('\0' .. runs):find('\0' .. run .. '\0', 1, true) then
    redis.call('HSET', job(id), 'runs', runs .. run .. '\0')
  end
end

local function unlist(name)
  redis.call('UNLINK', ns .. 'schedule:' .. name)
  redis.call('ZREM', ns .. 'schedules', name)
  redis.call('ZREM', ns .. 'due', name)
end

local function remove(name, keep_until)
  for _, tick in ipairs(redis.call('ZRANGE', ns .. 'open:' .. name, 0, -1)) do
    redis.call('HDEL', ns .. 'open', tick .. '|' .. name)
  end -- its entries in `decided` are removed when they expire
  redis.call('UNLINK', ns .. 'open:' .. name)
  if keep_until == '' then
    redis.call('UNLINK', ns .. 'tick:' .. name, ns .. 'ticks:' .. name)
  else
    for _, tick in ipairs(redis.call('ZRANGE', ns .. 'ticks:' .. name, 0, -1)) do
      local decided_at = redis.call('ZSCORE', ns .. 'decided', tick .. '|' .. name)
      if not decided_at or tonumber(decided_at) > tonumber(keep_until) then
        redis.call('HDEL', ns .. 'tick:' .. name, tick)
        redis.call('ZREM', ns .. 'ticks:' .. name, tick)
      end
    end
  end
  unlist(name)
end

local function write(name, rev, at, last)
  local body, due_at, owner, former = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local jobs, ticks = enqueue_all(at + 4, owner ~= '' and owner)
  at = ticks + 1 + 6 * tonumber(ARGV[ticks])
  for i = ticks + 1, at - 1, 6 do
    local tick, job_id, answer, text = ARGV[i], ARGV[i + 2], jobs[tonumber(ARGV[i + 3])], ARGV[i + 5]
    if type(answer) == 'table' and answer[1] ~= job_id then -- the tick follows the existing job
      job_id = answer[1]
      local tick_body = cjson.decode(text)
      tick_body.job_id = job_id
      text = cjson.encode(tick_body)
    end
    write_tick(name, tick, text, ARGV[i + 1] == '1', job_id, ARGV[i + 4])
    if job_id ~= '' then belongs(job_id, tick .. '|' .. name) end
  end
  for i = at, last do cancel(ARGV[i], ARGV[1]) end
  if former ~= '' then unlist(former) end
  redis.call('HSET', ns .. 'schedule:' .. name, 'rev', rev + 1, 'body', body)
  if rev == 0 or former ~= '' then redis.call('ZADD', ns .. 'schedules', 0, name) end
  if due_at == '' then
    redis.call('ZREM', ns .. 'due', name)
  elseif redis.call('ZADD', ns .. 'due', due_at, name) == 1 then
    ring('due', '')
  end
end

local answers, at = {}, 2
while ARGV[at] do
  local last, name, rev, owner = at + tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2], ARGV[at + 5]
  local former = ARGV[at + 6]
  local replaces = ns .. 'schedule:' .. (former == '' and name or former)
  local fits = (redis.call('HGET', replaces, 'rev') or '0') == rev and (owner == '' or is_alive(owner))
  if former ~= '' and redis.call('EXISTS', ns .. 'schedule:' .. name) == 1 then fits = false end
  if fits and ARGV[at + 3] == '' then
    remove(name, ARGV[at + 4])
  elseif fits then
    write(name, tonumber(rev), at + 3, last)
  end
  answers[#answers + 1] = fits and 1 or 0
  at = last + 1
end
return answers

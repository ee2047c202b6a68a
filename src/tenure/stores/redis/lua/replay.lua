#!lua
-- ended → queued, scheduled or waiting, with the budgets reset. ARGV: the error of a job that
-- expired; then per job its id, milliseconds until it is due and, for new arguments, the facts that were read, the new
-- facts and the payload (else empty), and whether `reopen` has opened its edges. Returns per job: nothing (no such job),
-- its state if it has not ended, 0 if it ran under a guard, the holder of its unique key and the key, 2 if its facts
-- have changed and must be read again, 5 if it has too many edges for one step, 6 if the step has no room for them; a
-- job, its state, and why there is no replay because of it; or 1 (queued), 3 (scheduled), 4 (waiting).

-- Had the schedule its name when this tick was decided? See `Schedule.named_at`. As texts, times sort without their Z.
local function had_its_name(row, decided_at)
  local former = row.formerly and row.formerly[#row.formerly]
  for _, since in ipairs({type(row.since) == 'string' and row.since or '', former and former[2] or ''}) do
    if since:sub(1, -2) > decided_at:sub(1, -2) then return false end
  end
  return true
end

-- The ticks that name this job are open again: it is a run of their schedules once more. The new rev of the schedule,
-- in its body too, refuses a writer that still saw the run as ended.
local function reopen(id)
  for run in (redis.call('HGET', job(id), 'runs') or ''):gmatch('([^%z]+)%z') do
    local tick, name = split(run)
    local stored = redis.call('HGET', ns .. 'tick:' .. name, tick)
    local body = stored and cjson.decode(stored)
    local schedule = ns .. 'schedule:' .. name
    local row = redis.call('HGET', schedule, 'body')
    if body and body.job_id == id and row and had_its_name(cjson.decode(row), body.decided_at) then
      body.status, body.why, body.started_at, body.ended_at = 'open', '', cjson.null, cjson.null
      write_tick(name, tick, cjson.encode(body), true, id)
      local rev = redis.call('HINCRBY', schedule, 'rev', 1)
      local new = row:gsub('"rev":%d+', '"rev":' .. rev, 1)
      redis.call('HSET', schedule, 'body', new)
    end
  end
end

local answers, edges = {}, 200
for i = 2, #ARGV, 6 do
  local id, delay, edited = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 4] ~= ''
  local j = read(id)
  local child = j and j.state == 'completed' and j.linked and live_child(id)
  local number = j and redis.call('ZCARD', ns .. 'parents:' .. id) or 0
  local some, lost = {}, false
  if number > 0 and number <= edges and ENDED[j.state] then
    some = redis.call('ZRANGE', ns .. 'parents:' .. id, 0, -1, 'WITHSCORES')
    lost = lost_of(some, ARGV[1])
  end
  local holder = j and j.unique and redis.call('HGET', ns .. 'unique', j.unique)
  if not j then
    answers[#answers + 1] = false
  elseif LIVE[j.state] then
    answers[#answers + 1] = j.state
  elseif j.queue == 'guard' then
    answers[#answers + 1] = 0
  elseif holder then
    answers[#answers + 1] = {holder, j.unique}
  elseif edited and redis.call('HGET', job(id), 'facts') ~= ARGV[i + 2] then
    answers[#answers + 1] = 2
  elseif child then
    answers[#answers + 1] = {child, '', 'child'}
  elseif number > 0 and live_gathered(id) then
    answers[#answers + 1] = {live_gathered(id), '', 'gathered'}
  elseif number > edges and ARGV[i + 5] == '' then
    answers[#answers + 1] = number > 200 and 5 or 6
  elseif lost then
    answers[#answers + 1] = lost
  else
    if number > 0 and ARGV[i + 5] == '' then
      edges = edges - number
      open_all(id, some, false)
    end
    leave(id, j)
    if edited then
      redis.call('HDEL', job(id), 'checkpoint', 'progress', 'stage', 'message')
      redis.call('HSET', job(id), 'facts', ARGV[i + 3], 'payload', ARGV[i + 4])
    end
    j.anew, j.run_at, j.solo = true, now + delay, cjson.decode(redis.call('HGET', job(id), 'facts')).isolated == true
    redis.call('HDEL', job(id), 'result', 'error', 'expires_at', 'cancel_reason', 'failures', 'crashes',
      'crashes_total', 'together', 'started_at', 'last_activity_at', 'due_at')
    redis.call('HSET', job(id), 'run_at', j.run_at, 'solo', j.solo and '1' or '0')
    if j.unique then redis.call('HSET', ns .. 'unique', j.unique, id) end
    if number > 0 or redis.call('EXISTS', ns .. 'pins:' .. id) == 1 then link(id) end
    local waits = redis.call('EXISTS', ns .. 'unmet:' .. id) == 1
    enter(id, j, waits and 'waiting' or delay > 0 and 'scheduled' or 'queued')
    reopen(id)
    answers[#answers + 1] = j.state == 'waiting' and 4 or j.state == 'scheduled' and 3 or 1
  end
end
return answers

#!lua flags=allow-oom
-- waiting → queued, scheduled or cancelled, once what a job waits for has happened. ARGV: how many asks, our protocol,
-- the error of a job that expired; then, with \1 for a job, why one is cancelled: its parent was cancelled, is gone; its
-- gatherer ended dead, cancelled. Returns how many asks it has answered; whether more are left; the milliseconds until
-- the next time-out, or nothing; how many it cancelled; whether any is scheduled; whether `give` has to look at keys; then
-- per queued job its queue and id. Those with limits wait for `give`.
local most, expired, was_cancelled, was_gone = tonumber(ARGV[1]), ARGV[3], ARGV[4], ARGV[5]
local because = {dead = ARGV[6], cancelled = ARGV[7]}
local room, number, stopped, later, queued = 200, 0, 0, 0, {}

local function cancel_for(id, reason, other)
  if not LIVE[redis.call('HGET', job(id), 'state')] then return false end
  if cancel(id, (reason:gsub('\1', other))) == 'cancelled' then stopped = stopped + 1 end
  return true
end

-- A job that waits for its places: only `give` lets it go on, but it may have expired.
local function lapse(id, j)
  local til = tonumber(redis.call('HGET', job(id), 'wait_until') or nil)
  if til and til <= now then
    leave(id, j)
    redis.call('HSET', job(id), 'error', expired)
    enter(id, j, 'cancelled')
    stopped = stopped + 1
  elseif til then
    redis.call('ZADD', ns .. 'waits', til, id) -- it was taken out, and the clock stepped back
  end
end

-- A waiting job: admit it if it waits for nothing any more. If its signal is there, or its time is over, but edges are
-- open, it waits for those alone.
local function let(id, j)
  if j.parked then return lapse(id, j) end
  local f = redis.call('HMGET', job(id), 'wait_for', 'wait_until', 'enqueued_at', 'expires_at')
  local key, til = f[1], tonumber(f[2] or nil)
  if key and not (til and til <= now) then
    local signals = key:sub(1, 7) == 'shared:' and ns .. 'shared' or ns .. 'signals:' .. id
    if redis.call('HEXISTS', signals, key) == 0 then
      if til then redis.call('ZADD', ns .. 'waits', til, id) end -- it was taken out, and the clock stepped back
      return
    end
  end
  if redis.call('EXISTS', ns .. 'unmet:' .. id) == 1 then return wake(id) end
  local due = j.run_at > math.max(now, tonumber(f[3])) and j.run_at or now
  leave(id, j)
  if f[4] then redis.call('HSET', job(id), 'expires_at', tonumber(f[4]) + due - j.run_at) end
  redis.call('HSET', job(id), 'run_at', due)
  j.run_at, j.anew = due, true
  enter(id, j, due > now and 'scheduled' or 'queued')
  room = room - 2
  if j.state == 'scheduled' then later = 1 end
  if j.state == 'queued' then queued[#queued + 1], queued[#queued + 2] = j.queue, id end
end

-- An open edge, and its parent's state: it closes, or its child is cancelled, or it stays open.
local function settle(child, parent, edge, state, error)
  if state and met(edge, state) or not state and marked(edge, 1) then
    redis.call('ZREM', ns .. 'unmet:' .. child, parent)
  elseif not state or state == 'cancelled' and error ~= expired then
    return cancel_for(child, state and was_cancelled or was_gone, parent)
  end
end

-- A waiting job looks at its parents. Returns from where to go on, if that was not all of it.
local function look(id, j, from)
  if j.parked then return let(id, j) end
  local asked = room
  local some = redis.call('ZRANGEBYSCORE', ns .. 'unmet:' .. id, from or '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, asked)
  for n = 1, #some, 2 do
    local parent, edge = some[n], tonumber(some[n + 1])
    room = room - 1
    if parent ~= LATER then
      pin(parent, id)
      local f = redis.call('HMGET', job(parent), 'state', 'error')
      if settle(id, parent, edge, f[1], f[2]) then return end
    end
  end
  if #some == 2 * asked then return string.format('%.0f', some[#some] + 1) end
  let(id, j)
end

-- An ended job: its children are looked at, what it still gathers ends, and no job is kept for it any more.
local function tell(id, j, from)
  local pins, parents, error = ns .. 'pins:' .. id, ns .. 'parents:' .. id, redis.call('HGET', job(id), 'error')
  local phase, at = (from or 'children'):match('^(%a+):?(.*)$')
  if phase == 'children' then
    local asked = room
    local some = redis.call('ZRANGEBYLEX', pins, at == '' and '-' or '(' .. at, '+', 'LIMIT', 0, asked)
    for _, child in ipairs(some) do
      if room <= 0 then return 'children:' .. at end
      at, room = child, room - 1
      local edge = redis.call('ZSCORE', ns .. 'unmet:' .. child, id)
      local cancelled = edge and settle(child, id, tonumber(edge), j.state, error)
      if edge and not cancelled and redis.call('EXISTS', ns .. 'unmet:' .. child) == 0 then
        local k = read(child)
        if k and k.state == 'waiting' then let(child, k) end
      end
    end
    if #some == asked then return 'children:' .. at end
    at = '-inf'
  end
  if room <= 0 then return 'parents:' .. at end
  local asked = room
  local some = redis.call('ZRANGEBYSCORE', parents, at, '+inf', 'WITHSCORES', 'LIMIT', 0, asked)
  for n = 1, #some, 2 do
    local parent = some[n]
    room = room - 1
    if because[j.state] and marked(tonumber(some[n + 1]), MINE) then cancel_for(parent, because[j.state], id) end
    redis.call('ZREM', ns .. 'pins:' .. parent, id)
    release(parent)
  end
  if #some == 2 * asked then return 'parents:' .. string.format('%.0f', some[#some] + 1) end
  release(id)
end

-- One ask. Returns from where to go on, if that was not all of it.
local function answer(what, from)
  if what:sub(1, 7) == 'shared:' then
    local asked = room
    local ids = redis.call('ZRANGEBYLEX', ns .. 'waitfor:' .. what, from and '(' .. from or '-', '+', 'LIMIT', 0, asked)
    for _, id in ipairs(ids) do
      if room <= 0 then return from end
      from, room = id, room - 1
      local j = read(id)
      if j and j.state == 'waiting' then let(id, j) end
    end
    return #ids == asked and from or nil
  elseif what:sub(1, 5) == 'gone:' then
    local dropped, left = drop(what:sub(6), room)
    room = room - dropped
    return left and '' or nil
  end
  local j = read(what)
  if j and j.state == 'waiting' then return look(what, j, from and tonumber(from)) end
  if j and ENDED[j.state] then return tell(what, j, from and from:match('^%a') and from) end
end

-- For ends that went unnoticed: older code stores no asks. Once its workers are gone, every waiting job is looked at
-- again, 100 a step; and always 100 in ten seconds, because clients may run older code too.
local walk = ns .. 'walk'
local function look_again()
  local f = redis.call('HMGET', walk, 'hurry', 'at', 'stepped_at')
  if not f[1] and math.abs(now - (tonumber(f[3] or nil) or 0)) < 10000 then return end
  local low = (f[2] or '') == '' and '-' or '(' .. f[2]
  local some = redis.call('ZRANGEBYLEX', ns .. 'waiting', low, '+', 'LIMIT', 0, 100)
  for _, id in ipairs(some) do ask_anew(id) end
  redis.call('HSET', walk, 'at', #some == 100 and some[100] or '', 'stepped_at', now)
  if #some < 100 then redis.call('HDEL', walk, 'hurry') end
end

local asks, timeouts = ns .. 'asks', ns .. 'waits'
if #outdated(tonumber(ARGV[2])) > 0 then
  redis.call('HSET', walk, 'hurry', 1, 'at', '')
  return {0, 0, false, 0, 0, 0}
end
local over = redis.call('ZRANGEBYSCORE', timeouts, '-inf', now, 'LIMIT', 0, 100)
for _, id in ipairs(over) do
  redis.call('ZREM', timeouts, id)
  ask(id)
end
if redis.call('EXISTS', asks) == 0 then look_again() end
for _, what in ipairs(redis.call('ZRANGE', asks, 0, most - 1)) do
  if room <= 0 then break end
  local from = redis.call('HGET', ns .. 'asked', what)
  redis.call('ZREM', asks, what)
  local rest = answer(what, from)
  room = room - 1
  if rest then
    redis.call('HSET', ns .. 'asked', what, rest)
    redis.call('ZADD', asks, 'NX', now, what)
  else
    number = number + 1
    if from then redis.call('HDEL', ns .. 'asked', what) end
  end
end
local more = redis.call('EXISTS', asks, ns .. 'sealed') > 0 or redis.call('HEXISTS', walk, 'hurry') == 1
local first = redis.call('ZRANGE', timeouts, 0, 0, 'WITHSCORES')
local keys = redis.call('EXISTS', ns .. 'key_asks', ns .. 'limit_asks', ns .. 'key_dues', ns .. 'placed') > 0
local found = {number, more and 1 or 0, first[2] and math.max(tonumber(first[2]) - now, 0) or false, stopped, later,
               keys and 1 or 0}
for _, each in ipairs(queued) do found[#found + 1] = each end
return found

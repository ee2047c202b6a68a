
-- What a key allows, after common.lua and waits.lua: as core/limits.py and stores/places.py say it. Times are in seconds
-- here. A key that is known has key:KEY, with its `limit`, and while its bucket is not full the `tokens` and `at`.
local second = now / 1000
local function field(row, name)
  local value = row and row[name]
  return value ~= cjson.null and value or nil
end

-- The bounds of a key: each as it is set for the key, else as set for its limit, else as declared.
local function bounds_of(limit, key)
  local bounds = {}
  if not limit or field(limit, 'retired_at') then return bounds end
  for _, each in ipairs({field(limit, 'declared') or {}, field(limit, 'set') or {}, field(key, 'set') or {}}) do
    bounds.concurrency, bounds.rate = field(each, 1) or bounds.concurrency, field(each, 2) or bounds.rate
  end
  return bounds
end

local function paused_until(limit, key)
  if field(limit, 'retired_at') then return nil end
  local til = math.max(field(limit, 'paused_until') or 0, field(key, 'paused_until') or 0)
  return til > second and til or nil
end

-- A rate: how many begins at most, in how many seconds, and how many of them at once.
local function refill(rate) return (rate[1] + 1 - rate[3]) / rate[2] end

-- Seconds: a time that is ahead of now by less than this is really later; by more, the clock was set back.
local later = 10

local function refilled(bucket, rate, at)
  if at < bucket.at and bucket.at < at + later then return bucket end
  local gained = math.max(at - bucket.at, 0) * refill(rate)
  return {tokens = math.min(rate[3], bucket.tokens + gained), at = at}
end

local function after_begins(bucket, rate, begins)
  table.sort(begins)
  local found = bucket or {tokens = rate[3], at = math.min(second, begins[1] or second)}
  for _, at in ipairs(begins) do
    if found.at < at and at < second + later then found = refilled(found, rate, at) end
    found = {tokens = found.tokens - 1, at = found.at}
  end
  return refilled(found, rate, second)
end

-- How many more jobs may be admitted.
local function room_of(state)
  if state.paused then return 0 end
  local free = math.huge
  if state.bounds.concurrency then free = state.bounds.concurrency - state.count.held end
  if state.bucket then free = math.min(free, math.floor(state.bucket.tokens + 1e-9) - state.count.unbegun) end
  return math.max(free, 0)
end

-- When it may have room again by itself.
local function due_of(state)
  if state.paused then return state.paused end
  if not state.bucket or state.bounds.concurrency and state.count.held >= state.bounds.concurrency then return nil end
  return math.max(second, state.bucket.at) + math.max(0, (state.count.unbegun + 1 - state.bucket.tokens) / refill(state.bounds.rate))
end

local function full_of(state)
  if not state.bucket then return 0 end
  local rate = state.bounds.rate
  return state.bucket.at + math.max(0, rate[3] - state.bucket.tokens) / refill(rate)
end

-- The queue of a lane.
local function queue_of(lane) return lane:match('^%Z*') end

-- Is this queue not paused, and does a live worker serve it? The newest are looked at first: most of them are alive.
local served_now = {}
local function served(queue)
  if served_now[queue] ~= nil then return served_now[queue] end
  local workers, at, found = ns .. 'serves:' .. queue, 0, false
  if redis.call('HEXISTS', ns .. 'paused', queue) == 0 then
    repeat
      local some, gone = redis.call('ZREVRANGE', workers, at, at + 19), {}
      for _, worker in ipairs(some) do
        found = found or is_alive(worker)
        if not redis.call('ZSCORE', ns .. 'alive', worker) then gone[#gone + 1] = worker end
      end
      if #gone > 0 then redis.call('ZREM', workers, unpack(gone)) end
      at = at + #some - #gone
    until found or #some < 20
  end
  served_now[queue] = found
  return found
end

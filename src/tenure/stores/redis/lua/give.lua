#!lua flags=allow-oom
-- waiting → queued: the places of keys, as `serve` in places.py gives them; or cancelled, if a job has expired. ARGV: how
-- many jobs and keys, our protocol, the error of a job that expired. Returns how many jobs; whether more is left; the
-- milliseconds until a key may have room by itself, or nothing; how many it cancelled; then per queued job its queue and
-- id.
local most, expired, stopped, queued = tonumber(ARGV[1]), ARGV[3], 0, {}
local budget, keys, asks = most, limited(), ns .. 'key_asks'

-- The settings of a limit, or of a key.
local rows = {}
local function row(of, name)
  rows[of] = rows[of] or {}
  if rows[of][name] == nil then
    local body = redis.call('HGET', ns .. of, name)
    rows[of][name] = body and cjson.decode(body) or false
  end
  return rows[of][name]
end

-- A job has paused its key. Only the end of the text is replaced, so that no other number is encoded again.
local function write_pause(key, limit, til)
  local mine = row('key_limits', key)
  if (field(mine, 'paused_until') or 0) >= til then return end
  local body, rev = redis.call('HGET', ns .. 'key_limits', key), mine and mine.rev or 0
  local head = body and body:match('^(.*),"paused_until":')
    or '{"name":' .. cjson.encode(key) .. ',"key":true,"limit":' .. cjson.encode(limit)
  local tail = string.format(',"paused_until":%.17g,"why":"a job snoozed it","rev":%d}', til, rev + 1)
  redis.call('HSET', ns .. 'key_limits', key, head .. tail)
  redis.call('ZADD', ns .. 'limited_keys', 0, key)
  rows.key_limits[key] = nil
end

-- What is known of a key, once its begins and pauses are written down, and the places that this step has given.
local known = {}
local function known_of(key, limit)
  if known[key] then return known[key] end
  local name, begun = ns .. 'key:' .. key, ns .. 'begun:' .. key
  local f = redis.call('HMGET', name, 'tokens', 'at', 'pause', 'slow_lane', 'slow_until', 'due', 'limit')
  limit = limit or f[7]
  if not limit then return nil end
  if f[3] then
    write_pause(key, limit, tonumber(f[3]))
    redis.call('HDEL', name, 'pause')
  end
  local told = redis.call('LRANGE', begun, 0, 999)
  for n, at in ipairs(told) do told[n] = at / 1000 end
  local slow_until = tonumber(f[5] or nil) or 0
  known[key] = {
    held = redis.call('ZCARD', ns .. 'places:' .. key), unbegun = redis.call('SCARD', ns .. 'unbegun:' .. key),
    bucket = f[1] and {tokens = tonumber(f[1]), at = tonumber(f[2])}, told = told, due = f[6], limit = f[7],
    slow = slow_until > now and slow_until <= now + 30000 and f[4], states = {}, -- however the clock was set
  }
  return known[key]
end

-- The state of a key for the jobs that have it from this limit: two limits may give the same key, as after a renaming.
local function opened(key, limit)
  local count = known_of(key, limit)
  if count.states[limit] then return count.states[limit] end
  local name, of_limit, of_key = ns .. 'key:' .. key, row('limits', limit), row('key_limits', key)
  if count.limit ~= limit then
    keys.know(key, limit)
    count.limit = limit
  end
  local state = {
    key = key, bounds = bounds_of(of_limit, of_key), paused = paused_until(of_limit, of_key), count = count,
  }
  count.states[limit] = state
  local rate = state.bounds.rate
  if not rate then -- what was told is left for another limit that gives this key, and has a rate
    if #count.told == 1000 and not count.rated then redis.call('LTRIM', ns .. 'begun:' .. key, -1000, -1) end
    return state
  end
  if not count.rated and #count.told > 0 then redis.call('LTRIM', ns .. 'begun:' .. key, #count.told, -1) end
  count.rated = true
  -- There are more: nothing is given before all of them are counted.
  if #count.told == 1000 then
    state.paused = second
    keys.look({key})
  end
  state.bucket = after_begins(count.bucket, rate, count.told)
  if full_of(state) > second then
    redis.call('HSET', name, 'tokens', state.bucket.tokens, 'at', state.bucket.at)
  else
    redis.call('HDEL', name, 'tokens', 'at')
  end
  return state
end

-- What this step has admitted, written at its end: a command for all of a lane or a key, not one a job.
local given, stamp = {ids = {}, placed = {}, lanes = {}}, string.format('%.0f', now) -- a number is formatted at each use
local function admit(id, stored, j, lane, needed)
  for _, each in ipairs(needed) do
    local count = known[each[1]]
    count.held, count.unbegun = count.held + 1, count.unbegun + 1
    keys.gather(count, 'given', id)
  end
  redis.call('HSET', stored, 'state', 'queued', 'run_at', stamp)
  if j.til then
    redis.call('HDEL', stored, 'parked', 'wait_until')
    redis.call('ZREM', ns .. 'waits', id)
  else
    redis.call('HDEL', stored, 'parked')
  end
  local of = given.lanes[lane]
  if not of then
    of = {queue = j.queue, solo = j.solo, ready = {}, late = {}}
    given.lanes[lane] = of
  end
  local n = #of.late
  of.ready[n + 1], of.ready[n + 2] = score(j.rank, now), id
  of.late[n + 1], of.late[n + 2] = stamp, id
  given.ids[#given.ids + 1] = id
  n = #given.placed
  given.placed[n + 1], given.placed[n + 2] = id, j.limits
  n = #queued
  queued[n + 1], queued[n + 2] = j.queue, id
end

local function write_admitted()
  if #given.ids == 0 then return end
  redis.call('ZREM', ns .. 'waiting', unpack(given.ids))
  redis.call('ZREM', ns .. 'waited', unpack(given.ids))
  redis.call('HSET', ns .. 'placed', unpack(given.placed))
  for key, count in pairs(known) do
    if count.given then
      local places = {}
      for n, id in ipairs(count.given) do places[2 * n - 1], places[2 * n] = stamp, id end
      redis.call('ZADD', ns .. 'places:' .. key, unpack(places))
      redis.call('SADD', ns .. 'unbegun:' .. key, unpack(count.given))
    end
  end
  for lane, of in pairs(given.lanes) do
    redis.call('ZADD', lane_key(of.queue, of.solo), unpack(of.ready))
    redis.call('ZADD', ns .. 'unbegun_of:' .. lane, unpack(of.late))
    redis.call('SADD', ns .. 'unbegun_of', lane)
    redis.call('SADD', ns .. 'queues', of.queue)
    count_waiting(of.queue, -#of.late / 2)
    ring('queued', of.queue)
  end
end

-- A parked job goes on: it is queued, or parked under another key that refuses it, or has expired. Returns 'gone' if it is
-- to leave the lot, 'left' if it has, and 'stays' if this key refuses it.
local function go_on(key, limit, id, lane)
  local stored = job(id)
  local f = redis.call('HMGET', stored, 'state', 'parked', 'queue', 'attempt', 'expires_at', 'limits', 'rank', 'solo',
    'due_at', 'wait_until')
  local queue, solo = f[3], f[8] == '1'
  if f[1] ~= 'waiting' or f[2] ~= key then return 'gone' end -- older code has ended it
  if keys.lane_of(queue, solo) ~= lane then -- it was parked in a lane that is not its own, but is not lost
    keys.unpark(id, key, lane)
    keys.park(id, {queue = queue, solo = solo, rank = tonumber(f[7])}, key, limit, tonumber(f[9]))
    return 'left'
  end
  if (tonumber(f[4]) or 0) == 0 and f[5] and tonumber(f[5]) < now then
    local j = read(id)
    j.admitted = true
    leave(id, j)
    redis.call('HSET', job(id), 'error', expired)
    enter(id, j, 'cancelled')
    stopped = stopped + 1
    return 'left'
  end
  local needed = keys.keys_in(f[6])
  for _, each in ipairs(needed) do
    if room_of(opened(each[1], each[2])) == 0 then
      if each[1] == key then return 'stays' end
      keys.unpark(id, key, lane)
      keys.park(id, {queue = queue, solo = solo, rank = tonumber(f[7])}, each[1], each[2], tonumber(f[9]))
      return 'left'
    end
  end
  admit(id, stored, {queue = queue, limits = f[6], rank = tonumber(f[7]), solo = solo, til = f[10]}, lane, needed)
  return 'gone'
end

-- Remove from a lot the jobs that have left it.
local function close(lot)
  if #lot.gone == 0 then return end
  redis.call('ZREM', lot.key, unpack(lot.gone))
  lot.gone = {}
end

-- The first job of a lot, behind those that stay. A job that goes on leaves the lot, so the next one is then the first.
local function head(lot)
  if lot.at > #lot.some then
    close(lot)
    lot.some, lot.at = redis.call('ZRANGE', lot.key, lot.stay, lot.stay + lot.most, 'WITHSCORES'), 1
  end
  return lot.some[lot.at], tonumber(lot.some[lot.at + 1])
end

-- Give the places of a key: to the more urgent first, then to those that were due first, of the queues that are served. A
-- lane that was slow to use its places comes last.
local function serve(key)
  local count = known_of(key)
  if not count then return end
  local limit = count.limit
  local mine, lots, left, went = opened(key, limit), {}, 0, false
  for _, lane in ipairs(redis.call('ZRANGE', ns .. 'parked_of:' .. key, 0, -1)) do
    local queue = queue_of(lane)
    if served(queue) then
      local lot = {key = keys.lot(key, lane), lane = lane, some = {}, at = 1, looked = 0, stay = 0,
                   gone = {}, slow = count.slow == lane and 1 or 0}
      lot.number = redis.call('ZCARD', lot.key)
      lots[#lots + 1], left = lot, left + lot.number
    else
      redis.call('SADD', ns .. 'idle:' .. queue, key)
      redis.call('SADD', ns .. 'idle', queue)
    end
  end
  local waiting, most_now = left, math.min(room_of(mine), budget, left)
  for _, lot in ipairs(lots) do lot.most = math.min(most_now, 32) - 1 end
  for _ = 1, most_now do
    local best, first, at
    for _, lot in ipairs(lots) do
      local id, rank = head(lot)
      if id and (not best or lot.slow < best.slow
        or lot.slow == best.slow and (rank < at or rank == at and id < first)) then
        best, first, at = lot, id, rank
      end
    end
    if not best then break end
    best.at, best.looked, budget, left = best.at + 2, best.looked + 1, budget - 1, left - 1
    local how = go_on(key, limit, first, best.lane)
    if how == 'gone' then best.gone[#best.gone + 1] = first end
    if how == 'stays' then best.stay = best.stay + 1 else went = true end
  end
  for _, lot in ipairs(lots) do
    close(lot)
    if lot.looked >= lot.number and redis.call('EXISTS', lot.key) == 0 then redis.call('ZREM', ns .. 'parked_of:' .. key, lot.lane) end
  end
  if count.due then
    redis.call('ZREM', ns .. 'key_dues', key)
    redis.call('ZREM', ns .. 'key_found', key)
    redis.call('HDEL', ns .. 'key:' .. key, 'due')
  end
  if went and left > 0 and room_of(mine) ~= 0 then keys.look({key}) end -- more than this step takes
  local due
  for _, state in pairs(count.states) do
    local at = waiting > 0 and room_of(state) == 0 and due_of(state)
    if at then due = math.min(at, due or at) end
  end
  if due then
    redis.call('ZADD', ns .. 'key_dues', math.ceil(due * 1000), key)
    redis.call('ZADD', ns .. 'key_found', now, key)
    redis.call('HSET', ns .. 'key:' .. key, 'due', 1)
  end
end

-- Nothing has to be kept about a key that no job uses, once its bucket is full and its pause has passed.
local left_over = 31 * 86400 -- seconds for which a bucket is kept whose rate is not known here
local function forget_unused(key, count)
  if count.held > 0 then return end
  local name, of_key = ns .. 'key:' .. key, row('key_limits', key)
  local fades = field(of_key, 'paused_until') or 0
  for _, state in pairs(count.states) do fades = math.max(fades, full_of(state)) end
  if not count.rated then -- no limit that was looked at has a rate: another one that gives this key had one
    local last = count.told[#count.told]
    if last and last < second - left_over then
      redis.call('UNLINK', ns .. 'begun:' .. key)
    elseif last then
      redis.call('ZADD', ns .. 'key_fades', now + left_over * 1000, key)
    end
    if count.bucket then fades = math.max(fades, count.bucket.at + left_over) end
  end
  if of_key and (field(of_key, 'declared') or field(of_key, 'set'))
    or redis.call('EXISTS', ns .. 'places:' .. key, ns .. 'parked_of:' .. key, ns .. 'begun:' .. key) > 0
    or redis.call('ZSCORE', asks, key) then
    return
  end
  if fades > second then
    redis.call('ZADD', ns .. 'key_fades', math.ceil(fades * 1000), key)
  else
    local limit = redis.call('HGET', name, 'limit')
    if limit then redis.call('ZREM', ns .. 'keys_of:' .. limit, key) end
    redis.call('UNLINK', name)
    redis.call('HDEL', ns .. 'key_limits', key)
    redis.call('ZREM', ns .. 'limited_keys', key)
    redis.call('ZREM', ns .. 'keys', key)
    for _, each in ipairs({'key_dues', 'key_found', 'key_fades'}) do redis.call('ZREM', ns .. each, key) end
  end
end

-- A limit was changed: each key that it may give has to be looked at.
local function look_at_keys_of(limit)
  local from, stem = redis.call('HGET', ns .. 'limit_asked', limit), limit:match('^[^{]*')
  local some = redis.call('ZRANGEBYLEX', ns .. 'keys', from and '(' .. from or '[' .. stem, '[' .. stem .. '\255', 'LIMIT', 0, 200)
  keys.look(some)
  if #some == 200 then return redis.call('HSET', ns .. 'limit_asked', limit, some[200]) end
  redis.call('HDEL', ns .. 'limit_asked', limit)
  redis.call('ZREM', ns .. 'limit_asks', limit)
end

-- For begins and ends that went unnoticed: older code knows nothing of places. Once its workers are gone, 100 places a
-- step are looked at; and always 100 in ten seconds, because clients may run older code too.
local walk = ns .. 'walk'
local function look_at_places()
  local f = redis.call('HMGET', walk, 'places_hurry', 'places_at', 'places_stepped_at')
  if not f[1] and math.abs(now - (tonumber(f[3] or nil) or 0)) < 10000 then return end
  local page = redis.call('HSCAN', ns .. 'placed', f[2] or '0', 'COUNT', 100)
  for n = 1, #page[2], 2 do
    local id, text = page[2][n], page[2][n + 1]
    local j = redis.call('HMGET', job(id), 'state', 'queue', 'solo')
    local lane = keys.lane_of(j[2] or '', j[3] == '1')
    if j[1] == 'processing' then
      if redis.call('ZSCORE', ns .. 'unbegun_of:' .. lane, id) then keys.begin({id, lane, text}) end
    elseif j[1] ~= 'queued' then
      keys.free({id, lane, text})
    end
  end
  redis.call('HSET', walk, 'places_at', page[1], 'places_stepped_at', now)
  if page[1] == '0' then redis.call('HDEL', walk, 'places_hurry') end
end

if #outdated(tonumber(ARGV[2])) > 0 then
  redis.call('HSET', walk, 'places_hurry', 1, 'places_at', '0')
  return {0, 0, false, 0}
end
look_at_places()
local limit = redis.call('ZRANGE', ns .. 'limit_asks', 0, 0)[1]
if limit then look_at_keys_of(limit) end
local due = redis.call('ZRANGEBYSCORE', ns .. 'key_dues', '-inf', now, 'LIMIT', 0, 100)
-- Found at a time still to come: the clock was set back, and it is not known when there will be room.
local later = redis.call('ZRANGEBYSCORE', ns .. 'key_found', '(' .. string.format('%.0f', now), '+inf', 'LIMIT', 0, 100)
for _, some in ipairs({due, later}) do
  for _, key in ipairs(some) do
    redis.call('ZREM', ns .. 'key_dues', key)
    redis.call('ZREM', ns .. 'key_found', key)
    keys.look({key})
  end
end
for _, key in ipairs(redis.call('ZRANGE', asks, 0, most - 1)) do
  if budget <= 0 then break end
  keys.answer(key)
  serve(key)
end
write_admitted()
for key, count in pairs(known) do forget_unused(key, count) end
local more = redis.call('EXISTS', asks, ns .. 'limit_asks')
local first = redis.call('ZRANGE', ns .. 'key_dues', 0, 0, 'WITHSCORES')
local found = {most - budget, more > 0 and 1 or 0, first[2] and math.max(tonumber(first[2]) - now, 0) or false, stopped}
for _, each in ipairs(queued) do found[#found + 1] = each end
return found

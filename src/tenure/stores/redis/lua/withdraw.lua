#!lua flags=allow-oom
-- queued → waiting: places that a lane does not use go back. ARGV: the lane, how many jobs to look at, the milliseconds
-- after which a place should have begun, and for which a lane that did not begin comes last. It goes on behind
-- those that it left the last time. Returns how many jobs wait again, and whether there are more.
local lane, most, patience = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local lot, cursor, number = ns .. 'unbegun_of:' .. lane, ns .. 'unbegun_at', 0
local serving = served(queue_of(lane))

-- Is a job of another lane, which is served, parked under this key?
local others = {}
local function awaited(key)
  if others[key] == nil then
    others[key] = false
    for _, each in ipairs(redis.call('ZRANGE', ns .. 'parked_of:' .. key, 0, -1)) do
      others[key] = others[key] or each ~= lane and served(queue_of(each))
    end
  end
  return others[key]
end

local function is_slow(j)
  local found = false
  for _, each in ipairs(cjson.decode(j.limits)) do
    if awaited(each[1]) then
      redis.call('HSET', ns .. 'key:' .. each[1], 'slow_lane', lane, 'slow_until', now + patience)
      found = true
    end
  end
  return found
end

local til, at = '+inf', 0
if serving then til, at = now - patience, tonumber(redis.call('HGET', cursor, lane) or 0) end
local some = redis.call('ZRANGEBYSCORE', lot, '-inf', til, 'LIMIT', at, most)
local late = #some
if serving and late < most then -- admitted before the clock was set back
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', lot, now + patience, '+inf', 'LIMIT', 0, most - late)) do
    some[#some + 1] = id
  end
end
for n, id in ipairs(some) do
  local j = read(id)
  if not j or j.state ~= 'queued' then
    redis.call('ZREM', lot, id) -- older code took it
  elseif serving and not is_slow(j) then
    if n <= late then at = at + 1 end
  else
    leave(id, j)
    enter(id, j, 'queued')
    number = number + 1
  end
end
local more = late == most
if more then redis.call('HSET', cursor, lane, at) else redis.call('HDEL', cursor, lane) end
if redis.call('EXISTS', lot) == 0 then redis.call('SREM', ns .. 'unbegun_of', lane) end
return {number, more and 1 or 0}

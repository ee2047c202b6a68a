#!lua flags=no-writes
-- Jobs that wait for what has already happened, with no ask left. ARGV: the error of a job that expired, how many asks
-- are too many, ids. Returns how many of the ids it has looked at; then, per job that it found, its id and the parents
-- whose end was not noticed. Of each job it looks at 200 open edges, and at about as many in all.
local expired, room, found = ARGV[1], 200, {#ARGV - 2}
local asks = ns .. 'asks'
-- After workers of an older release, which store no asks, every waiting job is asked for (admit.lua).
if redis.call('ZCARD', asks) > tonumber(ARGV[2]) or redis.call('HEXISTS', ns .. 'walk', 'hurry') == 1 then return found end

local function asked(what) return redis.call('ZSCORE', asks, what) end

local function signalled(id)
  local key = redis.call('HGET', job(id), 'wait_for')
  if not key then return true end
  local shared = key:sub(1, 7) == 'shared:'
  return not (shared and asked(key)) and redis.call('HEXISTS', shared and ns .. 'shared' or ns .. 'signals:' .. id, key) == 1
end

for n = 3, #ARGV do
  if room <= 0 then
    found[1] = n - 3
    break
  end
  local id = ARGV[n]
  local j = read(id)
  room = room - 1
  local whole = not redis.call('ZSCORE', ns .. 'unmet:' .. id, LATER) -- else its last part asks for it
  if j and j.state == 'waiting' and not j.parked and whole and not asked(id) then
    local some = redis.call('ZRANGE', ns .. 'unmet:' .. id, 0, 199, 'WITHSCORES')
    local missed = {id}
    for m = 1, #some, 2 do
      local parent, edge = some[m], tonumber(some[m + 1])
      room = room - 1
      if not asked(parent) then
        local f = redis.call('HMGET', job(parent), 'state', 'error')
        local state = f[1]
        if not state or met(edge, state) or state == 'cancelled' and f[2] ~= expired then missed[#missed + 1] = parent end
      end
    end
    if missed[2] or #some == 0 and signalled(id) then found[#found + 1] = missed end
  end
end
return found

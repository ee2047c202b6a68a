#!lua
-- Store a signal. ARGV: the job (empty: to all that wait for it), key, value, whether it replaces one. Returns nothing
-- (no such job); the job's state; its state and the time of an earlier signal, which stays; or, if it has ended, its
-- state alone in a list.
local id, key, kept = ARGV[1], ARGV[2], ns .. 'shared'
local state = 'waiting'
if id ~= '' then
  state, kept = redis.call('HGET', job(id), 'state'), ns .. 'signals:' .. id
  if not state then return false end
  if state == 'completed' or state == 'dead' or state == 'cancelled' then return {state} end
end
local before = redis.call('HGET', kept, key)
if before and ARGV[4] ~= '1' then return {state, before:match('^%d+')} end
redis.call('HSET', kept, key, string.format('%.0f', now) .. '=' .. ARGV[3])
if id == '' then
  redis.call('ZADD', ns .. 'shared_keys', 0, key)
  redis.call('ZADD', ns .. 'shared_at', now, key)
  ask_anew(key)
elseif state == 'waiting' then
  ask(id)
end
return state

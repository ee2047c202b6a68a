#!lua flags=allow-oom
-- The jobs that wait for this one go on without it; those that have waited do so when they are replayed. ARGV: its id,
-- the last child before (empty: none). Returns nothing (no such job), or its state; and the last child, if there are
-- more.
local id = ARGV[1]
local state = redis.call('HGET', job(id), 'state')
if not state then return false end
if state ~= 'dead' and state ~= 'cancelled' then return {state} end
local low = ARGV[2] == '' and '-' or '(' .. ARGV[2]
local some = redis.call('ZRANGEBYLEX', ns .. 'children:' .. id, low, '+', 'LIMIT', 0, 200)
for _, child in ipairs(some) do
  local edge = redis.call('ZSCORE', ns .. 'unmet:' .. child, id)
  if edge then
    redis.call('ZREM', ns .. 'unmet:' .. child, id)
    if not marked(tonumber(edge), SKIPPED) then redis.call('ZADD', ns .. 'parents:' .. child, edge + SKIPPED, id) end
    ask(child)
  end
end
return {state, #some == 200 and some[200]}

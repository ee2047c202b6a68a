#!lua
-- Compare and set one note, and enqueue jobs with it. ARGV: its key, the expected and the new text (empty: no note;
-- else = and the text), after how many milliseconds it expires (empty: never), jobs as `enqueue_all` takes them.
-- Returns 1 if it landed, and the current text.
local key, old, new, ttl = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local stands = note(redis.call('HGET', ns .. 'notes', key)) or ''
if stands ~= old and stands ~= new then return {0, stands} end
if stands == old and old ~= new then enqueue_all(5) end
if new == '' then
  forget_note(key)
  return {1, new}
end
local ends = ttl ~= '' and string.format('%.0f', now + tonumber(ttl)) or ''
redis.call('HSET', ns .. 'notes', key, ends .. new)
redis.call('ZADD', ns .. 'noted', 0, key)
if ends == '' then redis.call('ZREM', ns .. 'fading', key) else redis.call('ZADD', ns .. 'fading', ends, key) end
return {1, new}

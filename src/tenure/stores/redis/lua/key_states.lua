#!lua flags=no-writes
-- What is known of some keys. ARGV: keys. Returns the time; then per key, if it is known: its name, its limit, the bodies
-- of the rows of both (as far as they exist), its bucket, its begins since then, and the numbers of its places, of those
-- that have not begun, and of the jobs that are parked under it.
local answers = {now}
for _, key in ipairs(ARGV) do
  local f = redis.call('HMGET', ns .. 'key:' .. key, 'limit', 'tokens', 'at')
  if f[1] then
    local parked = 0
    for _, lane in ipairs(redis.call('ZRANGE', ns .. 'parked_of:' .. key, 0, -1)) do
      parked = parked + redis.call('ZCARD', limited().lot(key, lane))
    end
    answers[#answers + 1] = {key, f[1], redis.call('HGET', ns .. 'limits', f[1]),
      redis.call('HGET', ns .. 'key_limits', key), f[2], f[3], redis.call('LRANGE', ns .. 'begun:' .. key, 0, 9999),
      redis.call('ZCARD', ns .. 'places:' .. key), redis.call('SCARD', ns .. 'unbegun:' .. key), parked}
  end
end
return answers

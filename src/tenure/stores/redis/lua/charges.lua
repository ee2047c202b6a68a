#!lua flags=no-writes
-- The inputs of `decide` for leases that end otherwise than completed. ARGV: id, attempt and worker per lease.
-- Returns per lease: 1 and its charges, or 0 and what the store holds instead.
local answers = {}
for i = 1, #ARGV, 3 do
  local f = redis.call('HMGET', job(ARGV[i]), 'state', 'attempt', 'worker_id', 'facts', 'failures', 'crashes',
    'crashes_total', 'cancel_reason', 'solo', 'together', 'limits')
  if f[1] == 'processing' and f[2] == ARGV[i + 1] and f[3] == ARGV[i + 2] then
    answers[#answers + 1] = {1, f[4], f[5] or '0', f[6] or '0', f[7] or '0', f[8], f[9], f[10], f[11]}
  else
    answers[#answers + 1] = {0, standing(ARGV[i], ARGV[i + 1])}
  end
end
return answers

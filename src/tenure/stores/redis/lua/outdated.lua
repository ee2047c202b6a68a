#!lua flags=no-writes
-- Live workers with an older protocol than this one. ARGV: it.
return outdated(tonumber(ARGV[1]))

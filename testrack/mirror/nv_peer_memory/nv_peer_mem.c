/* Fake: the test rack's kernel loads no modules. nv_peer_mem.json says what its fake kernel shall list. */

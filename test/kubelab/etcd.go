package main

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// etcdStopTimeout bounds the wait for etcd to close its files.
const etcdStopTimeout = 2 * time.Second

// etcdServer is a lone etcd member on free ports of the loopback address.
type etcdServer struct {
	member *embed.Etcd
}

// startEtcd starts etcd and returns when it serves. fsync makes every write wait for the disk.
func startEtcd(ctx context.Context, dir string, fsync bool) (*etcdServer, error) {
	anyPort := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.LogLevel = "warn"
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = anyPort, anyPort
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = anyPort, anyPort
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.EnableGRPCGateway = false                 // it would dial port 0
	cfg.WarningUnaryRequestDuration = time.Second // zero, the default here, logs every request
	cfg.QuotaBackendBytes = 8 << 30               // bytes; the default of 2 GiB is little for a benchmark
	cfg.UnsafeNoFsync = !fsync
	cfg.TickMs, cfg.ElectionMs = 10, 100 // its election has no other members to wait for
	member, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	server := &etcdServer{member: member}
	select {
	case <-member.Server.ReadyNotify():
		return server, nil
	case err := <-member.Err():
		return server, fmt.Errorf("etcd: %w", err)
	case <-ctx.Done():
		return server, fmt.Errorf("etcd: %w", context.Cause(ctx))
	}
}

// endpoint returns the address for clients.
func (s *etcdServer) endpoint() string {
	return "http://" + s.member.Clients[0].Addr().String()
}

// stop closes the data files. Connections stay open, because waiting for clients takes
// seconds.
func (s *etcdServer) stop() {
	stopped := make(chan struct{})
	go func() {
		s.member.Server.HardStop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(etcdStopTimeout):
	}
}

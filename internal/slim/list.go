package slim

import (
	"context"
	"errors"
	"io"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
)

// errNoList means that the answer is not a list of the expected kind and format.
var errNoList = errors.New("not a list of the expected kind and format")

// lister lists all objects of a resource with one request, and decodes each as it
// arrives while the API server still writes the others. So neither side has the text of
// all objects in memory. client-go would receive them as events of a watch, which takes
// the API server twice the time, since it writes each event separately (measured with
// 3,000 PodAttachments: 0.20 ms each, in a list 0.09 ms).
type lister struct {
	// ListWatch watches. It also lists if the answer has an unexpected format.
	*toolscache.ListWatch
	client     rest.Interface
	resource   string
	decodeList func(io.Reader) (*internalversion.List, error)
}

// IsWatchListSemanticsUnSupported makes client-go list instead of watching a list
// (k8s.io/client-go/util/watchlist).
func (lister) IsWatchListSemanticsUnSupported() bool { return true }

// ListWithContext implements cache.ListerWatcherWithContext.
func (l lister) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	// Without a limit and a version, the API server returns all objects at once, in a
	// state that includes every write it has answered before, and still from its
	// memory.
	options.Limit, options.ResourceVersion, options.ResourceVersionMatch = 0, "", ""
	body, err := l.client.Get().Resource(l.resource).VersionedParams(&options, metav1.ParameterCodec).
		SetHeader("Accept-Encoding", "identity"). // compression takes longer than sending
		Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close() //nolint:errcheck // nothing was written
	list, err := l.decodeList(body)
	if err != nil {
		return l.ListWatch.ListWithContext(ctx, options)
	}
	return list, nil
}

package slim

import (
	"context"
	stdjson "encoding/json"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// NewClient returns a controller-runtime client, for manager.Options.NewClient. When it
// creates a PodAttachment, which happens once per pod, it requests only the metadata of
// the result. client-go scans the whole result several times, which is nearly half of
// the controller's cost of the create.
func NewClient(config *rest.Config, options client.Options) (client.Client, error) {
	standard, err := client.New(config, options)
	if err != nil {
		return nil, err
	}
	codecs := serializer.WithoutConversionCodecFactory{CodecFactory: serializer.NewCodecFactory(options.Scheme)}
	attachments, err := restClient(config, options.HTTPClient, v1alpha1.GroupVersion, codecs)
	if err != nil {
		return nil, fmt.Errorf("prepare to write PodAttachments: %w", err)
	}
	return creator{standard, attachments}, nil
}

// creator is a client that creates PodAttachments with a request of its own.
type creator struct {
	client.Client
	attachments rest.Interface
}

// metadataOnly requests only the metadata of the created object: the rest is known.
const metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json"

// Create implements client.Writer. For a PodAttachment it takes only the metadata from
// the API server's result; the other fields have no defaults.
func (c creator) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	a, ok := o.(*v1alpha1.PodAttachment)
	if !ok || len(opts) > 0 {
		return c.Client.Create(ctx, o, opts...)
	}
	body, err := encode(a)
	if err != nil {
		return err
	}
	result := c.attachments.Post().Namespace(a.Namespace).Resource("podattachments").
		SetHeader("Accept", metadataOnly).SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(ctx)
	if err := result.Error(); err != nil { // Raw returns the error in other words
		return err
	}
	answer, err := result.Raw()
	if err != nil {
		return err
	}
	return takeMetadata(a, answer)
}

// encode encodes a PodAttachment with fewer nested calls than client-go. In a burst of
// pods hundreds of goroutines encode at once, and each keeps the stack of its deepest
// call.
func encode(a *v1alpha1.PodAttachment) ([]byte, error) {
	named := *a
	named.SetGroupVersionKind(attachmentKind)
	body, err := stdjson.Marshal(&named)
	if err != nil {
		return nil, fmt.Errorf("encode PodAttachment %s/%s: %w", a.Namespace, a.Name, err)
	}
	return body, nil
}

// takeMetadata adopts the metadata of the API server's answer.
func takeMetadata(a *v1alpha1.PodAttachment, answer []byte) error {
	var created struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	err := json.Unmarshal(answer, &created, decodeOptions)
	if err == nil && created.Metadata.UID == "" {
		err = errors.New("the UID is missing")
	}
	if err != nil {
		return fmt.Errorf("PodAttachment %s/%s was created, but the API server's answer is unreadable: %w", a.Namespace, a.Name, err)
	}
	a.ObjectMeta = created.Metadata
	return nil
}

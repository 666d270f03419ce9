package slim

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fairlead.dev/fairlead/api/v1alpha1"
)

// NewClient is a controller-runtime client: what manager.Options.NewClient takes.
// It reads what the API server answers to the create of a PodAttachment, of which
// there is one in each pod's life, as its watch is read: client-go goes over the
// text several times, for nearly half of what the create costs the controller.
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

// creator creates PodAttachments itself.
type creator struct {
	client.Client
	attachments rest.Interface
}

// Create is of client.Writer.
func (c creator) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	a, ok := o.(*v1alpha1.PodAttachment)
	if !ok || len(opts) > 0 {
		return c.Client.Create(ctx, o, opts...)
	}
	result := c.attachments.Post().Namespace(a.Namespace).Resource("podattachments").Body(a).Do(ctx)
	if err := result.Error(); err != nil {
		return err
	}
	answer, err := result.Raw()
	if err != nil {
		return err
	}
	created, err := decodeAttachment(answer)
	if err != nil {
		created = &v1alpha1.PodAttachment{}
		if err := result.Into(created); err != nil {
			return fmt.Errorf("PodAttachment %s/%s was created, and the API server's answer cannot be read: %w", a.Namespace, a.Name, err)
		}
	}
	*a = *created
	return nil
}
